"""Learning from traffic: graded answers of each tier to a sample, and what a cascade makes of them."""
