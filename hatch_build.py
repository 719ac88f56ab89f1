"""What only a build that knows the repository's address can say: REPO_URL gives it, and PyPI's page leads there."""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """The project's addresses, and README with its links to files."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("REPO_URL", "").rstrip("/"):
            metadata["urls"] = {
                "Source": repository,
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
            if site := os.environ.get("SITE_URL"):
                metadata["urls"]["Documentation"] = site
            of_version = f"v{metadata['version']}" if "version" in metadata else "main"
            readme = re.sub(r"\]\((?!https?:|#)", f"]({repository}/blob/{of_version}/", readme)
            readme = re.sub(r'(src|srcset)="(?!https?:)', rf'\1="{repository}/raw/{of_version}/', readme)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
