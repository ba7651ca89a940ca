"""`python -m autobatch`: the command `autobatch`."""

from autobatch.cli.main import main

if __name__ == "__main__":
    main()
