"""`python -m acms` is `acms`."""

from acms.cli import main

if __name__ == "__main__":
    main()
