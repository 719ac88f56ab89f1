"""What tests share beside formulas: comparisons, the table of functions, slow cases."""
