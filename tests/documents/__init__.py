"""What the vendor's documents say, statement by statement, each with the test that shows it. Start at table.py."""
