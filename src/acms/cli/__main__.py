"""`python -m acms.cli` is `acms`."""

from acms.cli import main

if __name__ == "__main__":
    main()
