"""What the theory of queues says of M/M/c: waiting, time in the system, and its quantiles.

Erlang's C formula and the distribution of the sojourn time of M/M/c, first come first served, as in any textbook (D.
Gross et al., "Fundamentals of Queueing Theory", 4th ed., section 2.3).
"""

from __future__ import annotations

import math

from scipy.optimize import brentq


def waits(rate: float, mean: float, servers: int) -> float:
    """The share of requests that wait (Erlang C)."""
    offered = rate * mean
    load = offered / servers
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)


def mean_sojourn(rate: float, mean: float, servers: int) -> float:
    """The mean time in the system."""
    return mean + waits(rate, mean, servers) / (servers / mean - rate)


def longer(time: float, rate: float, mean: float, servers: int) -> float:
    """The share of requests that are longer in the system than ``time``."""
    own, spare = 1 / mean, servers / mean - rate
    waiting = waits(rate, mean, servers)
    if abs(spare - own) < 1e-9 * own:
        return math.exp(-own * time) * (1 + waiting * own * time)
    both = (math.exp(-spare * time) - math.exp(-own * time)) * own / (own - spare)
    return math.exp(-own * time) + waiting * both


def sojourn_quantile(share: float, rate: float, mean: float, servers: int) -> float:
    """The time in the system that so many requests do not exceed."""
    most = 100 * mean_sojourn(rate, mean, servers)
    return float(brentq(lambda time: longer(time, rate, mean, servers) - (1 - share), 0, most))
