"""Where references lead, dynamic ones too as far as that is the same from everywhere."""

from __future__ import annotations

from structgen.grammar.schema.keywords import Keywords


def target_of(keywords: Keywords, keyword: str) -> str | None:
    """Return the pointer that a reference leads to; None: it depends on the way that led to it.

    Raises ConstraintError: it leads nowhere, or out of the document.
    """
    document = keywords.document
    reference = str(keywords.value(keyword))
    target = document.resolve(reference, keywords.at(keyword))
    name = {"$dynamicRef": "$dynamicAnchor", "$recursiveRef": "$recursiveAnchor"}.get(keyword)
    if name is None:
        return target
    anchor = reference.rpartition("#")[2] if keyword == "$dynamicRef" else True
    found = document.at(target)
    if not isinstance(found, dict) or found.get(name) != anchor:
        return target  # the same as $ref
    # Every way begins in the resource that the document is: its anchor is the outermost.
    outermost = document.in_outermost(name, anchor)
    if outermost is not None:
        return outermost
    return target if document.count(name, anchor) == 1 else None
