"""A cache layer that grows by half where Transformers' own is copied whole at every token.

    room  [b, g, capacity, d], of which the first n keys are there; keys and values are views of it,
          and behind it are zeros, as many as one head has
    pool  [b, capacity, g, d], the same as attention has it: a page for each sequence
    any   [pages, capacity, g, d]: a page that begins at any token, (b * g * capacity + token) of b

What shortens, repeats or reorders a cache replaces the views by tensors of its own; the next update
makes room for those."""

import torch
from transformers.cache_utils import DynamicLayer

# Keys of a page: what the rows of a card read without a rest.
PAGE = 128


class GrowingLayer(DynamicLayer):
    """Keys and values [b, g, n, d] of a layer, without a limit, appended in place."""

    def lazy_initialization(self, key_states, value_states):
        super().lazy_initialization(key_states, value_states)
        self.rooms = self.pools = self.any = self.mine = None

    def present(self):
        return self.keys.shape[-2] if self.is_initialized and self.keys.numel() else 0

    def room_for(self, key, value, n):
        """Room for n more of the like of key and value [b, g, *, d]: how many are there by now."""
        if not self.is_initialized:
            self.lazy_initialization(key, value)
        had = self.present()
        rooms = self.rooms
        if (
            rooms is None
            or had + n > rooms[0].shape[2]
            or rooms[0].shape[0] != key.shape[0]
            or (had and not self.is_mine())
        ):
            with torch.inference_mode(False), torch.no_grad():  # of inference mode it could not be written outside of it
                self.make_room(key, value, had, -(-max(had + n, (had * 3) // 2) // PAGE) * PAGE)
        return had

    def make_room(self, key, value, had, capacity):
        rooms, anywhere = [], []
        for old, like in ((self.keys, key), (self.values, value)):
            b, g, _, d = like.shape
            flat = torch.zeros((b * g + 1) * capacity * d, dtype=like.dtype, device=like.device)
            room = flat[: b * g * capacity * d].view(b, g, capacity, d)
            if had:
                room[:, :, :had] = old
            rooms.append(room)
            pages = (b - 1) * g * capacity + capacity
            anywhere.append(flat.as_strided((pages, capacity, g, d), (d, d, capacity * d, 1)))
        self.rooms, self.any = tuple(rooms), tuple(anywhere)
        self.pools = tuple(room.transpose(1, 2) for room in rooms)

    def is_mine(self):
        """Whether the keys and values are the views that hold() made: who has others from this room, or a copy
        of this layer, may still read what lies behind them."""
        owner, keys, values = self.mine or (None, None, None)
        return owner == id(self) and self.keys is keys and self.values is values

    def hold(self, n):
        """The first n of the room are there."""
        self.keys, self.values = (room[:, :, :n] for room in self.rooms)
        self.mine = id(self), self.keys, self.values

    def update(self, key_states, value_states, *args, **kwargs):
        grad = torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad)
        if grad or torch.compiler.is_compiling():  # a graph cannot ask where a tensor lies
            return super().update(key_states, value_states, *args, **kwargs)
        n = key_states.shape[-2]
        had = self.room_for(key_states, value_states, n)
        self.rooms[0][:, :, had : had + n] = key_states
        self.rooms[1][:, :, had : had + n] = value_states
        self.hold(had + n)
        return self.keys, self.values


def grow(cache):
    """Take such layers where an empty cache of Transformers has its plain ones."""
    layers = getattr(cache, "layers", None)
    if layers is None or torch.compiler.is_compiling():
        return
    for i, layer in enumerate(layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            layers[i] = GrowingLayer()
    if getattr(cache, "layer_class_to_replicate", None) is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
