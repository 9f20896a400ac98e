"""``python -m exaslurm``."""

from exaslurm.cli.main import main

if __name__ == "__main__":
    main()
