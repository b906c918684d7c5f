"""How DeepSeek's vocabularies split text, as one expression.

Their tokenizer.json splits three times, each time what the stage before left: numbers, then Chinese characters and
kana, then everything else. One expression splits the same where its branches exclude what an earlier stage takes and
where characters that no stage matches stay together; it is checked against the tokenizer.json when one is loaded.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SPLIT_PATTERN"]

_CJK: Final = "一-龥\u3040-ゟ゠-ヿ"  # the second stage, whole runs of it, which the third stage then splits again
_WORD: Final = rf"[[\p{{L}}\p{{M}}]&&[^{_CJK}]]"

SPLIT_PATTERN: Final = "|".join(
    (
        r"\p{N}{1,3}",
        rf"[[{_CJK}]&&[^\p{{L}}\p{{P}}\p{{S}}]]?[[{_CJK}]&&[\p{{L}}\p{{M}}]]+",
        rf"[[{_CJK}]&&[\p{{P}}\p{{S}}]]+",
        rf"[[{_CJK}]&&[^\p{{L}}\p{{M}}\p{{P}}\p{{S}}]]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        rf"[^\r\n\p{{L}}\p{{P}}\p{{S}}\p{{N}}{_CJK}]?{_WORD}+",
        rf" ?[[\p{{P}}\p{{S}}]&&[^{_CJK}]]+[\r\n]*",
        r"\s*[\r\n]+",
        rf"\s+(?![^\s\p{{N}}{_CJK}])",  # the text of a stage ends where an earlier stage took something
        r"\s+",
        rf"(?:[^\s\p{{L}}\p{{M}}\p{{P}}\p{{S}}\p{{N}}{_CJK}](?!{_WORD}))+",
    )
)
