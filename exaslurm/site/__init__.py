"""What the admin knows: the site config."""
