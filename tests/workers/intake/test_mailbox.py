"""The mailbox: order, the bound, and that no message is slept over."""

import threading

import pytest

from workers.intake.mailbox import Mailbox, MailboxFull


def test_messages_come_out_in_the_order_they_were_put() -> None:
    mailbox: Mailbox[int] = Mailbox(10)
    for number in range(3):
        mailbox.put(number)
    assert mailbox.take_all() == [0, 1, 2]
    assert mailbox.take_all() == []


def test_a_full_mailbox_refuses_and_keeps_what_it_has() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    mailbox.put(1)
    mailbox.put(2)
    with pytest.raises(MailboxFull, match="2 messages"):
        mailbox.put(3)
    assert mailbox.take_all() == [1, 2]


def test_a_message_put_before_the_wait_is_not_slept_over() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    mailbox.take_all()
    mailbox.put(1)
    assert mailbox.wait(timeout_s=0)


def test_wait_returns_when_another_thread_puts() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    thread = threading.Thread(target=mailbox.put, args=(7,))
    thread.start()
    assert mailbox.wait(timeout_s=10)
    thread.join()
    assert mailbox.take_all() == [7]


def test_wait_ends_without_a_message() -> None:
    assert not Mailbox[int](1).wait(timeout_s=0)
