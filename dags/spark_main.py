"""Entry point for spark-submit: runs the windowmill command."""

import sys

# Python puts this file's folder first on the path; its modules must not be importable by bare names such as `process`.
sys.path.pop(0)

from windowmill.jobs.cli import main

sys.exit(main())
