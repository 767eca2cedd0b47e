"""`python -m fusedsl`."""

from fusedsl.cli import main

if __name__ == "__main__":
    main()
