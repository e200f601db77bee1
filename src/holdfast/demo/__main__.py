"""`python -m holdfast.demo`: the demo with Spark, where that is installed."""

import sys

try:
    from holdfast.demo.clicks import main
except ModuleNotFoundError as error:
    sys.exit(f"this needs Spark ({error}): `make demo` installs it; `make demo-core` does without")

if __name__ == "__main__":
    sys.exit(main())
