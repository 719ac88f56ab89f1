"""Without transformers there is nothing to collect here."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]
