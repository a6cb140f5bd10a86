"""Records the script's arguments as argparse understands them, with their defaults."""

import argparse


def install(recorder):
    def parsed(token, result, args, kwargs):
        del token, kwargs
        values = vars(result[0])
        flags = [
            [action.option_strings, values.get(action.dest)]
            for action in args[0]._actions
            if action.option_strings and isinstance(values.get(action.dest), (int, float, str))
        ]
        if flags:
            recorder.event("arguments", flags=flags)

    recorder.wrap(argparse.ArgumentParser, "parse_known_args", after=parsed)
