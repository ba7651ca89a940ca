"""The command line: `autobatch train`, `bench`, `explain` and the others."""
