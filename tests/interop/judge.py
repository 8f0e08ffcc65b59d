"""Compares what a model was sent with what expected.json says it must be sent."""

# Texts in expected.json are cut off here, characters.
PREFIX = 80


def difference(expected, sent):
    """The first difference as a sentence, or None. Both are `[[role, text]...]`."""
    for at, (want, got) in enumerate(zip(expected, sent)):
        if want[0] != got[0] or not _same(want, got):
            return f"message {at} of {len(expected)}: expected {_show(want)}, the model was sent {_show(got)}"
    if len(sent) > len(expected):
        return f"{len(sent) - len(expected)} more than the {len(expected)} kept messages, first {_show(sent[len(expected)])}"
    if len(sent) < len(expected):
        return f"{len(expected) - len(sent)} of {len(expected)} kept messages missing, first {_show(expected[len(sent)])}"
    return None


def _same(want, got):
    want_text, got_text = " ".join(want[1].split()), " ".join(got[1].split())
    if len(want[1]) < PREFIX:
        return got_text == want_text
    return got_text.startswith(want_text)


def _show(message):
    role, text = message
    return f"{role} {text[:PREFIX]!r}"
