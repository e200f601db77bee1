"""`python -m holdfast.demo`: run the demo with Spark if Spark is installed."""

import sys

try:
    from holdfast.demo.clicks import main
except ModuleNotFoundError as error:
    sys.exit(f"this demo needs Spark ({error}): `make demo` installs it, `make demo-core` runs without")

if __name__ == "__main__":
    sys.exit(main())
