"""`python -m wdspack` is `wdspack`."""

from wdspack.cli import main

if __name__ == "__main__":
    main()
