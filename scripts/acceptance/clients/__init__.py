"""Programs that lines run on hosts of the lab; each reads its input as JSON from its arguments."""
