"""The command line interface: `autobatch train`, `bench`, `explain` and other commands."""
