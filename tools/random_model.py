"""What the makers of random checkpoints share: bf16 weights, the safetensors file, a tokenizer of bytes."""
import array
import json
import math
import random
import struct


def weights(source, shape, deviation):
    """Uniform values of this standard deviation as bf16, cut from one random block: quick, and no two rows alike."""
    count, block = math.prod(shape), 1 << 18
    width = deviation * math.sqrt(3)
    values = array.array("f", (source.uniform(-width, width) for _ in range(min(count, block)))).tobytes()
    short = bytearray(len(values) // 2)
    short[0::2], short[1::2] = values[2::4], values[3::4]
    data = bytearray()
    while len(data) < 2 * count:
        turn = 2 * source.randrange(len(short) // 2)
        data += short[turn:] + short[:turn]
    return bytes(data[:2 * count])


def write_model(folder, shapes, config, seed):
    """Makes `folder` with a checkpoint. shapes: name -> (shape, standard deviation; None: ones). Returns the source of what
    comes next."""
    folder.mkdir(parents=True)
    source = random.Random(seed)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, _) in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape, deviation in shapes.values():
            file.write(b"\x80\x3f" * math.prod(shape) if deviation is None else weights(source, shape, deviation))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return source


def write_rows(folder, source, rows, length, vocab):
    """rows.safetensors: random token ids to calibrate and evaluate with."""
    ids = struct.pack(f"<{rows * length}q", *(source.randrange(vocab) for _ in range(rows * length)))
    header = json.dumps({"input_ids": {"dtype": "I64", "shape": [rows, length], "data_offsets": [0, len(ids)]}}).encode()
    (folder / "rows.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + ids)


def write_byte_tokenizer(folder, specials):
    """tokenizer.json of the 256 bytes, then `specials`; the end of a text is the last of them."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 256 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, name in enumerate(specials)],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {letters[b]: b for b in range(256)}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1) + "\n")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": specials[-1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
