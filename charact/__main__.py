"""Lets `python -m charact` do what `charact` does."""

from charact.cli import main

if __name__ == "__main__":
    main()
