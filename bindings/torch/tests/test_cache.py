"""The growing cache beside the one of Transformers that it takes the place of."""

import copy

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from superop.cache import GrowingLayer, grow


def filled(cls):
    cache = DynamicCache()
    cache.layers.append(cls())
    g = torch.Generator().manual_seed(0)
    for n in (3, 1, 70, 1):
        k, v = torch.randn(2, 2, 2, n, 4, generator=g)
        cache.update(k, v, 0)
    return cache


def test_every_change_leaves_the_same():
    a, b = filled(DynamicLayer), filled(GrowingLayer)
    for change in (
        lambda c: c,
        lambda c: c.crop(-5),
        lambda c: c.update(torch.ones(2, 2, 9, 4), torch.ones(2, 2, 9, 4), 0),
        lambda c: c.reorder_cache(torch.tensor([1, 0])),
        lambda c: c.update(torch.zeros(2, 2, 1, 4), torch.ones(2, 2, 1, 4), 0),
        lambda c: c.batch_repeat_interleave(2),
        lambda c: c.update(torch.ones(4, 2, 2, 4), torch.zeros(4, 2, 2, 4), 0),
        lambda c: c.batch_select_indices(torch.tensor([3, 1])),
        lambda c: c.update(torch.ones(2, 2, 2, 4), torch.zeros(2, 2, 2, 4), 0),
    ):
        change(a), change(b)
        assert torch.equal(a.layers[0].keys, b.layers[0].keys) and torch.equal(a.layers[0].values, b.layers[0].values)
        assert a.get_seq_length() == b.get_seq_length()


def test_keys_that_others_have_stay_as_they_were():
    def search(c):
        """Two ways on from one place, then on with the first; keys of which every other is left; a second layer
        of the same keys."""
        one = c.layers[0]
        put = lambda layer, x: layer.update(torch.full((2, 2, 2, 4), x), torch.full((2, 2, 2, 4), -x))  # noqa: E731
        put(one, 1.0)
        root = one.keys, one.values
        first = put(one, 2.0)
        one.keys, one.values = root
        put(one, 3.0)
        one.keys, one.values = first
        put(one, 4.0)
        one.keys, one.values = one.keys[:, :, ::2], one.values[:, :, ::2]
        kept = put(one, 5.0)
        other = copy.copy(one)
        put(other, 6.0)
        put(one, 7.0)
        return torch.cat([*one.keys, *other.keys, *first[0], *kept[1]], 1)

    assert torch.equal(search(filled(DynamicLayer)), search(filled(GrowingLayer)))


def test_a_fresh_cache_grows():
    fresh = DynamicCache()
    grow(fresh)
    fresh.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4), 0)
    assert type(fresh.layers[0]) is GrowingLayer
