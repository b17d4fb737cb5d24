"""What a token costs."""

from __future__ import annotations

from dataclasses import dataclass

from ..openai_client import DEFAULT_BASE_URL

_MILLION = 1_000_000
# Enough for a price, and below every size from which a provider charges more.
_SAMPLE_TOKENS = 1_000


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens."""

    tokens_in: float
    tokens_out: float

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """Dollars."""
        return (tokens_in * self.tokens_in + tokens_out * self.tokens_out) / _MILLION


def listed_price(model: str, base_url: str | None) -> Price | None:
    """The price of a model at a public endpoint, from the list that the package ``genai-prices`` carries.

    None where the endpoint or the model is not in it, or the package is not installed.
    """
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    usages = Usage(input_tokens=_SAMPLE_TOKENS, output_tokens=0), Usage(input_tokens=0, output_tokens=_SAMPLE_TOKENS)
    try:
        figures = [
            float(calc_price(usage, model, provider_api_url=base_url or DEFAULT_BASE_URL).total_price)
            for usage in usages
        ]
    except LookupError:
        return None
    return Price(*(figure * _MILLION / _SAMPLE_TOKENS for figure in figures))
