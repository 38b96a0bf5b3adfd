"""From a rendered image to one that the engine has: options, tiers, skipping, progress, bill of materials."""
