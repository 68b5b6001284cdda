"""Renders a chat template as transformers does. Reads one JSON request on stdin, writes one JSON reply on stdout.
Arguments: bytes of memory, seconds of processor time.

request  {"template": text, "conversations": [[message, ...], ...], "variables": {name: text}, "add_generation_prompt": bool,
          "date": "YYYY-MM-DD" or null (today)}
reply    {"texts": [...]}, {"error": text, "conversation": index or null}, or {"missing": what there must be}

A template is a stranger's program. It runs in Jinja's sandbox and sees nothing but plain JSON values; the process has bounds
on memory and time, and can write to no file. chat_template.cpp holds this text as a string and starts it.
"""
import datetime
import json
import resource
import sys

JINJA_MIN = (3, 1, 6)  # older ones have known ways out of the sandbox


def bound(what, limit):
    hard = resource.getrlimit(what)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(what, (limit, limit + 1))  # the signal of the first of the two says which limit it was


def make_environment(now):
    import jinja2
    from jinja2 import nodes, sandbox
    from jinja2.ext import Extension, loopcontrols

    class Generation(Extension):
        """{% generation %}...{% endgeneration %} marks what the assistant says. Here its content is all that counts."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("content"), [], [], body).set_lineno(line)

        def content(self, caller):
            return caller()

    class PlainDict:
        """The callable `dict`, without the type behind it."""

        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args):
            return dict.fromkeys(*args)

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args, **kwargs):  # `self` may be the name of an attribute
            values = dict(*args[1:], **kwargs)
            for name in values:
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(args[0], values)

        def __setitem__(self, name, value):
            Namespace.check(name)
            super().__setitem__(name, value)

        @staticmethod
        def check(name):
            if str(name).startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace attribute must not be called {name!r}")

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=lambda form: now.strftime(form),
                               dict=PlainDict(), namespace=Namespace)
    return environment


def as_transformers_passes(messages):
    """Members that are null are left out; the reasoning of a message has several names."""
    passed = []
    for message in messages:
        message = {key: value for key, value in message.items() if value is not None}
        names = [name for name in ("reasoning_content", "thinking", "reasoning") if name in message]
        if names:
            reasoning = message[names[0]]
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        passed.append(message)
    return passed


def render(request, memory_bytes, cpu_seconds):
    import jinja2
    date = request["date"]
    now = datetime.datetime.fromisoformat(date) if date else datetime.datetime.now()
    environment = make_environment(now)
    place, texts = None, []
    bound(resource.RLIMIT_CPU, cpu_seconds)
    bound(resource.RLIMIT_AS, memory_bytes)
    bound(resource.RLIMIT_FSIZE, 0)
    try:
        template = environment.from_string(request["template"])
        for place, messages in enumerate(request["conversations"]):
            text = template.render(messages=as_transformers_passes(messages), tools=None, documents=None,
                                   add_generation_prompt=request["add_generation_prompt"], **request["variables"])
            text.encode()  # half a surrogate pair is no text
            texts.append(text)
        return {"texts": texts}
    except MemoryError:
        what = f"needs more than {memory_bytes >> 20} MiB"
    except jinja2.exceptions.TemplateSyntaxError as error:
        what = f"line {error.lineno}: {error.message}"
    except Exception as error:
        what = str(error) or type(error).__name__
    return {"error": what.encode(errors="replace").decode(), "conversation": place}


def main():
    request = json.load(sys.stdin)
    try:
        import jinja2
        version = jinja2.__version__
    except ImportError:
        version = None
    if version is None or tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < JINJA_MIN:
        reply = {"missing": "jinja2" if version is None else f"a newer jinja2 than {version}"}
    else:
        reply = render(request, int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write(json.dumps(reply))


main()
