"""The sentences of this package: what a drift, a finding and a value read like. Nothing is measured here."""
