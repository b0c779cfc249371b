"""`python -m hetplanner.cli`: the command line where its console script is not on the path."""

from hetplanner.cli import main

if __name__ == "__main__":
    main()
