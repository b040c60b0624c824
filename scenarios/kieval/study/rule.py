"""What it takes to claim something of a candidate: one rule for sentences, lines, pages and JSON.

An accusation or a lead takes a p-value, corrected for all tests on the same items, below ``LEVEL``. That nothing was
found is said only where the test would have found an effect of a stated size with probability ``POWER`` at the same
level; else the answer is that there are too few items to tell.
"""

from __future__ import annotations

from viva.scoring import regression

LEVEL = regression.LEVEL  # of all claims of one kind on the same items
POWER = 0.8
KINDS_OF_TEST = 2  # against the line, and of the texts: each has half of the level
FALL = 30.0  # points below the line; the cheaters of the lab lie 36 to 40 below it
SCATTER = 5.0  # points by which honest models may lie about the line (standard deviation), besides their items' errors
AREA = 0.7  # under the curve of a detector that knows some of the texts
GAP = 10.0  # points between two candidates
FEWEST_ITEMS = regression.FEWEST  # or clusters of items
FEWEST_CANDIDATES = 4  # on a line: of three, none can be off it

SENTENCE = (
    f"Suspected or ahead: p below {LEVEL}, corrected for all tests on the same items. No sign: a fall of {FALL:g} "
    f"points below the line, or an AUC of {AREA:g}, would be found with a power of {POWER:.0%}. Else too few to tell."
)
