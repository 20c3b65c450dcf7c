"""What counts as one training step."""

from __future__ import annotations

from interpose.time.steps import StepCounter


class Watched:
    """A counter and what it told. Letters: b backward, o optimizer step, B(...)B a backward with things
    inside."""

    def __init__(self, limit: int | None = None) -> None:
        self.ends: list[int] = []
        self.finished_at: int | None = None
        self.position = 0
        self.counter = StepCounter(self.ends.append, limit=limit, finished=self._finished)

    def _finished(self) -> None:
        if self.finished_at is None:
            self.finished_at = self.position

    def play(self, events: str) -> list[int]:
        for event in events:
            self.position += 1
            if event == "b":
                self.counter.backward_begins()
                self.counter.backward_ended()
            elif event == "(":
                self.counter.backward_begins()
            elif event == ")":
                self.counter.backward_ended()
            elif event == "o":
                self.counter.optimizer_stepped()
        return self.ends


def test_one_optimizer_one_step() -> None:
    assert Watched().play("bobobo") == [0, 1, 2]


def test_accumulation_is_one_step() -> None:
    assert Watched().play("bbbobbbo") == [0, 1]


def test_several_optimizers_without_a_backward_between_are_one_step() -> None:
    assert Watched().play("booobooo") == [0, 0, 0, 1, 1, 1]


def test_alternating_networks_are_a_step_each() -> None:
    assert Watched().play("bobo") == [0, 1]


def test_steps_before_any_backward_count() -> None:
    assert Watched().play("oo") == [0, 0]


def test_a_step_that_only_makes_the_optimizers_state_is_replaced_by_the_first_real_one() -> None:
    assert Watched().play("obobo") == [0, 0, 1]
    watched = Watched(limit=1)
    watched.play("obo")
    assert watched.finished_at is None


def test_an_optimizer_inside_the_backward_ends_with_it() -> None:
    watched = Watched()
    watched.play("(oooo")
    assert watched.ends == []
    watched.play(")")
    assert watched.ends == [0]
    assert watched.play("(oo)") == [0, 1]


def test_a_backward_inside_a_backward_does_not_split_a_step() -> None:
    assert Watched().play("((oo)o)o") == [0, 0]


def test_the_limit_ends_with_the_last_optimizer_of_the_step() -> None:
    watched = Watched(limit=2)
    watched.play("booboo")
    assert watched.finished_at == 6
    assert watched.ends == [0, 0, 1, 1]


def test_a_limit_of_one_is_noticed_at_the_next_backward() -> None:
    watched = Watched(limit=1)
    watched.play("boo")
    assert watched.finished_at is None
    watched.play("b")
    assert watched.finished_at == 4


def test_a_shorter_last_run_is_noticed_at_the_next_backward() -> None:
    watched = Watched(limit=2)
    watched.play("boobo")
    assert watched.finished_at is None
    watched.play("b")
    assert watched.finished_at == 6
