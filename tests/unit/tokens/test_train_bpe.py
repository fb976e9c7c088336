"""Learning a vocabulary: native code runs beside the main thread, which reads the texts and hears Ctrl-C."""

import os
import signal
import threading

import pytest

from groundup.tokens.tokenizer.train_bpe import _in_a_thread


def test_all_texts_arrive_in_their_order():
    arrived = []
    _in_a_thread(arrived.extend, (str(number) for number in range(5000)))
    assert arrived == [str(number) for number in range(5000)]


def test_ctrl_c_is_heard_while_native_code_runs():
    begun, ended = threading.Event(), threading.Event()

    def learn(texts):
        assert threading.current_thread() is not threading.main_thread()
        begun.set()
        ended.wait()

    def interrupt():
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        _in_a_thread(learn, [])
    ended.set()


def test_what_goes_wrong_with_a_text_is_raised():
    def texts():
        yield "a"
        raise ValueError("a damaged file")

    ended = threading.Event()

    def learn(arriving):
        list(arriving)
        ended.set()

    with pytest.raises(ValueError, match="a damaged file"):
        _in_a_thread(learn, texts())
    assert ended.wait(60), "the thread waits for texts for ever"


def test_what_goes_wrong_in_learning_is_raised_though_nobody_takes_the_texts():
    def learn(texts):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        _in_a_thread(learn, ("a" for _ in range(5000)))
