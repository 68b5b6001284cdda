"""The one rule for coroutine code.

co_await stands alone: as a statement, or as the whole right side of a declaration, an assignment or co_return. Its
operand is an object or a call, with objects, numbers and plain calls for arguments. g++ 12 miscompiles other forms,
some of them silently: conditional operators, conditions and loop headers, && and ||, braced lists, string literals in
the same statement.
"""
OPENERS = {"(": ")", "[": "]", "{": "}"}
CLOSERS = {")": "(", "]": "[", "}": "{"}
CONTROL = {"if", "while", "for", "switch"}
# Operators that may stand in an operand at all; of them, * & - ! only in front of a name.
OPERAND_OPS = {".", "->", "::", "(", ")", "[", "]", ",", "<", ">"}
UNARY = {"*", "&", "-", "!"}
FORBIDDEN_WORDS = {"new", "throw", "sizeof", "operator"}

ALONE = "co_await must be the whole right side of a declaration, assignment or co_return: name the value first"


def check(tree):
    for source in tree.sources("src", "tests", "bench", "fuzz", "python"):
        if "co_await" not in source.text:
            continue
        for directive in source.directives:
            if "co_await" in directive.text:
                yield source.path, directive.line, "coroutine", "co_await inside a macro cannot be checked"
        for line, message in check_tokens(source.tokens):
            yield source.path, line, "coroutine", message


def check_tokens(tokens):
    """(line, message) of each co_await that breaks the rule."""
    stack = []
    for index, token in enumerate(tokens):
        if token.text == "co_await" and not (index and tokens[index - 1].text == "operator"):
            message = _check_await(tokens, index, stack[-1] if stack else None)
            if message:
                yield token.line, message
        if token.kind != "op":
            continue
        if token.text in OPENERS:
            stack.append(index)
        elif token.text in CLOSERS and stack:
            stack.pop()


def _check_await(tokens, index, opener):
    if opener is None:
        return "co_await outside a function"
    if tokens[opener].text != "{":
        before = tokens[opener - 1].text if opener else ""
        if before == "constexpr":
            before = "if"
        if before in CONTROL:
            return f"co_await inside the header of '{before}': await into a named object first"
        return "co_await inside parentheses or brackets: await into a named object first"
    end, message = _check_operand(tokens, index + 1)
    if message:
        return message
    start = _statement_start(tokens, index, opener)
    left = tokens[start:index]
    message = _check_left(left)
    if message:
        return message
    if any(token.kind == "string" for token in left + tokens[index:end]):
        return "co_await beside a string literal: name the string first"
    return None


def _check_operand(tokens, index):
    """Reads the operand up to its semicolon: (index of the end, message or None)."""
    depth = 0
    previous = None
    while index < len(tokens):
        token = tokens[index]
        text = token.text
        if token.kind == "string":
            return index, "co_await beside a string literal: name the string first"
        if text in FORBIDDEN_WORDS:
            return index, f"'{text}' in the operand of co_await: name the value first"
        if token.kind == "op":
            if text == ";" and depth == 0:
                return index, None
            if text == "{" or (text == "}" and depth == 0):
                return index, "co_await with a braced list or a lambda in its statement: name the value first"
            if text in (")", "]", ",") and depth == 0:
                return index, ALONE
            if text in ("?", ":", "&&", "||"):
                return index, f"'{text}' in the statement of a co_await: use if, or name the value first"
            value_before = previous is not None and (
                previous.kind in ("name", "number", "string", "char") or previous.text in (")", "]"))
            if text not in OPERAND_OPS and (text not in UNARY or value_before):
                return index, f"operator '{text}' in the operand of co_await: name the value first"
            depth += (text in ("(", "[")) - (text in (")", "]"))
        previous = token
        index += 1
    return index, "co_await without an end"


def _statement_start(tokens, index, opener):
    """Index of the first token of the statement that holds tokens[index], inside the block opened at `opener`."""
    depth = 0
    at = index - 1
    while at > opener:
        text = tokens[at].text if tokens[at].kind == "op" else ""
        if text in CLOSERS:
            if text == "}" and depth == 0:
                return _after_headers(tokens, at + 1, index)
            depth += 1
        elif text in OPENERS:
            depth -= 1
        elif text == ";" and depth == 0:
            break
        at -= 1
    return _after_headers(tokens, at + 1, index)


def _after_headers(tokens, start, end):
    """Skips `if (...)`, `else`, `do`, labels and the like in front of the statement proper."""
    while start < end:
        text = tokens[start].text
        if text in CONTROL:
            at = start + 1 + (tokens[start + 1].text == "constexpr")
            depth = 0
            while at < end:
                depth += (tokens[at].text == "(") - (tokens[at].text == ")")
                at += 1
                if depth == 0:
                    break
            start = at
        elif text in ("else", "do"):
            start += 1
        elif text in ("case", "default"):
            while start < end and tokens[start].text != ":":
                start += 1
            start += 1
        else:
            break
    return min(start, end)


def _check_left(left):
    """What stands between the start of the statement and co_await."""
    if not left or [token.text for token in left] == ["co_return"]:
        return None
    if left[-1].text != "=":
        if left[-1].text in ("?", ":"):
            return "co_await in a conditional operator: use if and else"
        if left[-1].text in ("&&", "||"):
            return f"co_await as an operand of '{left[-1].text}': await into a named object first"
        return ALONE
    depth = 0
    for position, token in enumerate(left[:-1]):
        text = token.text
        if token.kind == "string":
            return "co_await beside a string literal: name the string first"
        # `T&& x =` is a declaration, every other && a conjunction.
        reference = text == "&&" and (left[position - 1].text in ("auto", ">") or position == len(left) - 3)
        if text in ("?", "||", "{") or (text == "&&" and not reference):
            return f"'{text}' in the statement of a co_await: name the value first"
        depth += (text in ("(", "[")) - (text in (")", "]"))
        if depth == 0 and (text == "=" or text == "return" or text == "throw"):
            return ALONE
    return None
