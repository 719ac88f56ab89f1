"""The drawings of the site, a module for each page or two.

A colour means one thing on all pages. Red and blue: numbers above and below zero (encodings, matrices, parts of scores,
biases). Dark blue to yellow: similarity. Black to cream: attention weights. Blue lines are exact or known, vermilion
ones rounded or new.
"""
