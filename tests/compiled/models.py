"""Models as people write them, small: what `troupe compile` is tried on. Each function returns (model, loss, batch) from a seed."""
import torch
import torch.nn.functional as F
from torch import nn


def images(classes=10, size=16, samples=4):
    return torch.randn(samples, 3, size, size), torch.randint(classes, (samples,))


def classify(model, batch):
    scores = model(batch[0])
    return {"loss": F.cross_entropy(scores, batch[1]), "correct": (scores.argmax(1) == batch[1]).sum()}


def tokens(vocabulary=61, length=12, samples=4):
    ids = torch.randint(vocabulary, (samples, length + 1))
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def next_token(model, batch):
    scores = model(batch["input_ids"])
    return F.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())


class BasicBlock(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet18(nn.Module):
    """He et al., "Deep Residual Learning for Image Recognition", 2016, narrow."""

    def __init__(self, width=8, classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        inputs = width
        for i in range(4):
            setattr(self, f"layer{i + 1}", nn.Sequential(BasicBlock(inputs, width << i, 1 if i == 0 else 2), BasicBlock(width << i, width << i, 1)))
            inputs = width << i
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for i in range(4):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(x.mean((2, 3)))


def resnet18():
    return ResNet18(), classify, images()


class ViT(nn.Module):
    """Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, with PyTorch's own encoder layers."""

    def __init__(self, size=16, patch=4, width=32, layers=2, classes=10, dropout=0.0):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, F.gelu, batch_first=True, norm_first=True)
                                    for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def vit():
    return ViT(), classify, images()


def rotation(length, width, dtype, base=10000.0):
    angles = torch.outer(torch.arange(length, dtype=dtype), base ** (-torch.arange(0, width, 2, dtype=dtype) / width))
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class RotaryAttention(nn.Module):
    """Rotary positions (Su et al., 2021) and grouped heads (Ainslie et al., "GQA", 2023)."""

    def __init__(self, width, heads, groups, dropout=0.0):
        super().__init__()
        self.heads, self.groups, self.size, self.dropout = heads, groups, width // heads, dropout
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.groups, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (y.repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class GptBlock(nn.Module):
    def __init__(self, width, heads, groups, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = RotaryAttention(width, heads, groups, dropout)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(dropout)

    def forward(self, x, cos, sin):
        x = x + self.drop(self.attention(self.norm1(x), cos, sin))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """With the head tied to the embedding, and a rotary table that no checkpoint holds."""

    def __init__(self, vocabulary=61, width=32, layers=3, heads=4, groups=2, length=16, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(GptBlock(width, heads, groups, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        cos, sin = rotation(length, width // heads, torch.get_default_dtype())
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids):
        x, t = self.tokens(ids), ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.head(self.norm(x))


def gpt():
    return Gpt(), next_token, tokens()


def gpt_dropout():
    return Gpt(dropout=0.2), next_token, tokens()


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LlamaBlock(nn.Module):
    """Touvron et al., "LLaMA", 2023: RMSNorm before, SwiGLU (Shazeer, 2020)."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm, self.mlp_norm = RmsNorm(width), RmsNorm(width)
        self.attention = RotaryAttention(width, heads, heads)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary=61, width=32, layers=2, heads=4):
        super().__init__()
        self.width, self.heads = width, heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        with torch.no_grad():
            cos, sin = rotation(ids.shape[1], self.width // self.heads, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def masked_tokens(model, batch):
    """A sum over the tokens that count, and how many they are."""
    scores = model(batch["input_ids"])
    counts = batch["labels"] != -100
    return F.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum"), counts.sum()


def llama():
    batch = tokens()
    batch["labels"][:, :3] = -100
    return Llama(), masked_tokens, batch


class Conv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, 1, 1), nn.GroupNorm(2, outputs)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class UNet(nn.Module):
    """Ronneberger et al., "U-Net", 2015: what a level sees goes around the deeper ones."""

    def __init__(self, width=8):
        super().__init__()
        self.down = nn.ModuleList([Conv(3, width), Conv(width, 2 * width), Conv(2 * width, 4 * width)])
        self.up = nn.ModuleList([Conv(6 * width, 2 * width), Conv(3 * width, width)])
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        kept = []
        for i, level in enumerate(self.down):
            x = level(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for level, skip in zip(self.up, reversed(kept[:-1])):
            x = level(torch.cat([F.interpolate(x, scale_factor=2, mode="nearest"), skip], 1))
        return self.out(x)


def unet():
    picture, _ = images()
    return UNet(), lambda model, batch: F.mse_loss(model(batch["picture"]), batch["wanted"]), {"picture": picture, "wanted": torch.randn(4, 1, 16, 16)}


class Lstm(nn.Module):
    def __init__(self, vocabulary=61, width=16):
        super().__init__()
        self.tokens, self.lstm, self.head = nn.Embedding(vocabulary, width), nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids))[0])


def lstm():
    return Lstm(), next_token, tokens()


class TwoTowers(nn.Module):
    """Two inputs, a frozen layer, two results."""

    def __init__(self, width=16):
        super().__init__()
        self.picture = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, width), nn.Tanh())
        self.numbers = nn.Sequential(nn.Linear(5, width), nn.Tanh())
        self.mix = nn.Bilinear(width, width, width)
        self.classes, self.value = nn.Linear(width, 10), nn.Linear(width, 1)
        self.numbers[0].requires_grad_(False)

    def forward(self, picture, numbers):
        x = self.mix(self.picture(picture), self.numbers(numbers))
        return self.classes(x), self.value(x).squeeze(-1)


def two_towers():
    picture, label = images()

    def loss(model, batch):
        scores, value = model(batch["picture"], batch["numbers"])
        return {"loss": F.cross_entropy(scores, batch["label"]) + F.mse_loss(value, batch["value"]), "correct": (scores.argmax(1) == batch["label"]).sum()}
    return TwoTowers(), loss, {"picture": picture, "numbers": torch.randn(4, 5), "label": label, "value": torch.randn(4)}


ALL = {f.__name__: f for f in (resnet18, vit, gpt, gpt_dropout, llama, unet, lstm, two_towers)}


def made(name, dtype=torch.float32):
    """(model, loss, batch) of this name, the same each time."""
    torch.manual_seed(7)
    model, loss, batch = ALL[name]()
    move = lambda t: t.to(dtype) if t.is_floating_point() else t  # noqa: E731
    batch = {n: move(t) for n, t in batch.items()} if isinstance(batch, dict) else tuple(map(move, batch))
    return model.to(dtype), loss, batch


class Packed(torch.utils.data.Dataset):
    """40 samples like those of a model's example batch."""

    def __init__(self, name, dtype=torch.float32):
        torch.manual_seed(11)
        batches = []
        for _ in range(10):
            batch = ALL[name]()[2]
            batches.append(batch if isinstance(batch, dict) else dict(zip(("input", "target"), batch)))
        self.fields = {n: torch.cat([b[n] for b in batches]) for n in batches[0]}
        self.fields = {n: t.to(dtype) if t.is_floating_point() else t for n, t in self.fields.items()}
        self.pair = not isinstance(ALL[name]()[2], dict)

    def __len__(self):
        return len(next(iter(self.fields.values())))

    def __getitem__(self, index):
        row = {n: t[index] for n, t in self.fields.items()}
        return tuple(row.values()) if self.pair else row
