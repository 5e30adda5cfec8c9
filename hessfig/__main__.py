"""The command line as `python -m hessfig`."""

from hessfig.cli.main import main

if __name__ == "__main__":
    main()
