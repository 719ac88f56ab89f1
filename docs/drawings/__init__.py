"""The drawings of the site, a module for each page or two."""
