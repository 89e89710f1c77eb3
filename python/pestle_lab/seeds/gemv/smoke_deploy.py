#!/usr/bin/env python3
"""The kernels' test on another machine: python -m kernel_utils.smoke_deploy, which says how."""

import sys

from kernel_utils.smoke_deploy import main

if __name__ == "__main__":
    sys.exit(main())
