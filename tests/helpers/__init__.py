"""What tests share beside formulas: comparisons, tiers, quick compilation, and functions under test."""
