"""The command line. Verbs import what they need when they run, so that ``--help`` stays light."""
