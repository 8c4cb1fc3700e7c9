"""What spark-submit starts: the windowmill command."""

import sys

# Python puts this file's folder first; its modules are not for import by bare names such as `process`.
sys.path.pop(0)

from windowmill.jobs.cli import main

sys.exit(main())
