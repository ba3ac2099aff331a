"""The paper's equations as plain loops over floats, with which the package must agree.

A feature, a weight or a mean is a list of D floats, split into K heads of D/K; logits are a list
of C floats. docs/equations.md lists the numbers of the equations.
"""

import math
import statistics


def dot(a, b):
    value = 0.0
    for i in range(len(a)):
        value += a[i] * b[i]
    return value


def norm(a):
    return math.sqrt(dot(a, a))


def cos(a, b):
    return dot(a, b) / (norm(a) * norm(b))


def part(v, k, heads):
    """Return the k-th of `heads` equal parts of v."""
    size = len(v) // heads
    return v[k * size : (k + 1) * size]


def softmax(z):
    top = max(z)
    powers = [math.exp(value - top) for value in z]
    return [value / math.fsum(powers) for value in powers]


# ---- the head direction: Eq. 1 and Assumption 1


def sgd(theta, velocity, gradient, mu, lr):
    """One step of one parameter, Eq. 1."""
    velocity = mu * velocity + gradient
    return theta - lr * velocity, velocity


def running_mean(batches, mu):
    """The running mean of Assumption 1 over a list of batches of features; skips empty batches."""
    dim = next(len(batch[0]) for batch in batches if batch)
    mean = [0.0] * dim
    for batch in batches:
        if not batch:
            continue
        for j in range(dim):
            total = 0.0
            for x in batch:
                total += x[j]
            mean[j] = mu * mean[j] + total / len(batch)
    return mean


# ---- Eq. 10: the general normalised classifier, and its normalisers N(x, w_i)


def normalised(x, weight, tau, heads, normaliser):
    """Logits of every class by Eq. 10; `normaliser(x, w, i)` is N."""
    logits = []
    for i, w in enumerate(weight):
        value = 0.0
        for k in range(heads):
            xs, ws = part(x, k, heads), part(w, k, heads)
            value += dot(ws, xs) / normaliser(xs, ws, i)
        logits.append(tau / heads * value)
    return logits


def cosine(x, w, i):
    return norm(x) * norm(w)


def capsule(x, w, i):
    return (norm(x) + 1.0) * norm(w)


def deconfound(gamma):
    return lambda x, w, i: norm(x) * norm(w) + gamma * norm(x)


def tau_norm(power):
    return lambda x, w, i: norm(w) ** power


def lws(scales):
    return lambda x, w, i: scales[i]


# ---- Eq. 2: the effect that passes through d, for any normaliser


def indirect(x, weight, mean, tau, heads, normaliser):
    """The second term of Eq. 2: x is set to null, but its projection d on the mean remains.

    f = <w, x> becomes <w, d> with d = dhat cos(x, dhat) |x|; N only balances magnitudes and stays.
    """
    logits = []
    for i, w in enumerate(weight):
        value = 0.0
        for k in range(heads):
            xs, ws, ms = part(x, k, heads), part(w, k, heads), part(mean, k, heads)
            unit = [m / norm(ms) for m in ms]
            d = [u * cos(xs, unit) * norm(xs) for u in unit]
            value += dot(ws, d) / normaliser(xs, ws, i)
        logits.append(tau / heads * value)
    return logits


def effect(x, weight, mean, tau, heads, alpha, normaliser):
    """The effect of Eq. 2 with the trade-off alpha of Eq. 8."""
    first = normalised(x, weight, tau, heads, normaliser)
    second = indirect(x, weight, mean, tau, heads, normaliser)
    return [first[i] - alpha * second[i] for i in range(len(weight))]


# ---- Eqs. 5 to 8 as the paper writes them, one class at a time


def energy(x, w, tau, gamma):
    """The energy tau f / g, Eq. 6."""
    f = dot(w, x)
    g = norm(x) * norm(w) + gamma * norm(x)
    return tau * f / g


def multi_head(x, w, tau, gamma, heads):
    """The mean energy over the heads, Eq. 5."""
    value = 0.0
    for k in range(heads):
        value += energy(part(x, k, heads), part(w, k, heads), tau, gamma)
    return value / heads


def total(x, w, tau, gamma, heads):
    """The de-confounded logit of one class, Eq. 7."""
    value = 0.0
    for k in range(heads):
        xs, ws = part(x, k, heads), part(w, k, heads)
        value += dot(ws, xs) / ((norm(ws) + gamma) * norm(xs))
    return tau / heads * value


def tde(x, w, mean, tau, gamma, heads, alpha):
    """The TDE logit of one class, Eq. 8."""
    value = 0.0
    for k in range(heads):
        xs, ws, ms = part(x, k, heads), part(w, k, heads), part(mean, k, heads)
        unit = [m / norm(ms) for m in ms]
        scale = norm(ws) + gamma
        value += dot(ws, xs) / (scale * norm(xs)) - alpha * cos(xs, unit) * dot(ws, unit) / scale
    return tau / heads * value


# ---- Eq. 9


def background_exempt(total_logits, tde_logits, background=(0,)):
    """Probabilities by Eq. 9 for a set of background classes: they keep p, others the rest."""
    p, q = softmax(total_logits), softmax(tde_logits)
    kept, lost = 0.0, 0.0
    for i in background:
        kept += p[i]
        lost += q[i]
    return [p[i] if i in background else (1 - kept) * q[i] / (1 - lost) for i in range(len(p))]


# ---- the long tail


def exponential_counts(largest, ratio, classes):
    """Images of each class in an exponential long tail: n_i = int(n_max ratio^(-i/(C-1)))."""
    return [int(largest * ratio ** (-i / (classes - 1))) for i in range(classes)]


def group(count):
    """Return the group of a class with `count` training images."""
    if count > 100:
        return "many"
    return "medium" if count >= 20 else "few"


def group_accuracies(target, predicted, counts):
    """Mean class accuracy of each group in percent; None for an empty group."""
    classes = {"many": [], "medium": [], "few": []}
    for c in range(len(counts)):
        images, right = 0, 0
        for i in range(len(target)):
            if target[i] == c:
                images += 1
                right += predicted[i] == c
        if images:
            classes[group(counts[c])].append(100.0 * right / images)
    return {name: sum(a) / len(a) if a else None for name, a in classes.items()}


# ---- losses of other papers: the mean over a batch of logits (lists) and classes (ints)


def log_softmax(z, weight=None):
    """The logarithm of exp(z_i) / sum_j w_j exp(z_j) for every class."""
    top = max(z)
    total = 0.0
    for j in range(len(z)):
        total += (1.0 if weight is None else weight[j]) * math.exp(z[j] - top)
    return [value - top - math.log(total) for value in z]


def cross_entropy(logits, target):
    return sum(-log_softmax(z)[y] for z, y in zip(logits, target, strict=True)) / len(target)


def focal(logits, target, gamma):
    """Lin et al. 2017: -(1 - p_y)^gamma log p_y."""
    total = 0.0
    for z, y in zip(logits, target, strict=True):
        p = softmax(z)[y]
        total += -((1 - p) ** gamma) * math.log(p)
    return total / len(target)


def effective_weights(counts, beta):
    """Cui et al. 2019: 1 / E_n with E_n = (1 - beta^n) / (1 - beta), scaled to sum to C."""
    weights = [(1 - beta) / (1 - beta**n) for n in counts]
    return [w * len(counts) / math.fsum(weights) for w in weights]


def class_balanced(logits, target, counts, beta, gamma, softmax=False):
    """Cui et al. 2019: the loss of each image times the weight of its class.

    Their focal loss: p_i = sigmoid(z_i), z~_i = z_i for the true class and -z_i for the others,
    -sum_i (1 - p~_i)^gamma log p~_i; logits start at -log(C - 1). Or softmax cross-entropy instead.
    """
    weights = effective_weights(counts, beta)
    total = 0.0
    for z, y in zip(logits, target, strict=True):
        if softmax:
            total += weights[y] * cross_entropy([z], [y])
            continue
        for i, value in enumerate(z):
            shifted = value - math.log(len(z) - 1)
            p = 1 / (1 + math.exp(-shifted if i == y else shifted))
            total += weights[y] * -((1 - p) ** gamma) * math.log(p)
    return total / len(target)


def ldam(logits, target, counts, margin, scale, weights=None):
    """Cao et al. 2019: margins C / n^(1/4) with the largest at `margin`, weights as Algorithm 1."""
    largest = max(n**-0.25 for n in counts)
    total, weight = 0.0, 0.0
    for z, y in zip(logits, target, strict=True):
        cosines = [value / scale for value in z]
        cosines[y] -= margin * counts[y] ** -0.25 / largest
        w = 1.0 if weights is None else weights[y]
        total += w * cross_entropy([[scale * value for value in cosines]], [y])
        weight += w
    return total / weight


def eql(logits, target, counts, threshold, drawn):
    """Tan et al. 2020: w_j = 1 - b_j T(f_j) (1 - y_j), b drawn for each image and class."""
    total = 0.0
    for i, (z, y) in enumerate(zip(logits, target, strict=True)):
        weight = []
        for j in range(len(z)):
            rare = counts[j] / sum(counts) < threshold / len(counts)
            weight.append(0.0 if drawn[i][j] and rare and j != y else 1.0)
        total += -log_softmax(z, weight)[y]
    return total / len(target)


def balanced_softmax(logits, target, counts, strength):
    """Ren et al. 2020: p_y = n_y^s exp z_y / sum_j n_j^s exp z_j."""
    total = 0.0
    for z, y in zip(logits, target, strict=True):
        powers = [counts[j] ** strength * math.exp(z[j]) for j in range(len(z))]
        total += -math.log(powers[y] / math.fsum(powers))
    return total / len(target)


def self_prior(rows):
    """Mean softmax over the training images, from their logits."""
    means = [0.0] * len(rows[0])
    for z in rows:
        for i, p in enumerate(softmax(z)):
            means[i] += p / len(rows)
    return means


def adjusted(z, counts, tau):
    """Menon et al. 2021: z_i - tau log pi_i."""
    return [z[i] - tau * math.log(counts[i] / sum(counts)) for i in range(len(z))]


def bilateral(first, second, weight, half_first, half_second, bias, y_first, y_second):
    """Zhou et al. 2020: logits 2 (a W_c f_c + (1 - a) W_r f_r) + b; the losses weighted alike."""
    total = 0.0
    for f, g, y, r in zip(first, second, y_first, y_second, strict=True):
        z = []
        for c in range(len(half_first)):
            own, other = dot(half_first[c], f), dot(half_second[c], g)
            z.append(2 * (weight * own + (1 - weight) * other) + bias[c])
        total += weight * cross_entropy([z], [y]) + (1 - weight) * cross_entropy([z], [r])
    return total / len(y_first)


# ---- OLTR: Liu et al. 2019


def distance(a, b):
    return norm([a[i] - b[i] for i in range(len(a))])


def meta_embedding(v, memory, hallucinator, offset, selector, bias, reach):
    """reach / min_i |v - c_i| * (v + tanh(T v + b) * sum_i o_i c_i), o = softmax(W v + a)."""
    o = softmax([dot(w, v) + a for w, a in zip(hallucinator, offset, strict=True)])
    nearest = min(distance(v, c) for c in memory)
    meta = []
    for d in range(len(v)):
        recalled = 0.0
        for i in range(len(memory)):
            recalled += o[i] * memory[i][d]
        concept = math.tanh(dot(selector[d], v) + bias[d])
        meta.append(reach / nearest * (v[d] + concept * recalled))
    return meta


def modulated_attention(f, theta, phi, g, project, mask):
    """f + m_i * W sum_j a_ij g_j at each position i, a_i = softmax_j(theta_i . phi_j).

    m = softmax(V f + v) over the positions. f is a list of C channels of N positions; theta, phi, g
    and the mask are pairs of a matrix and a bias.
    """
    channels, positions = len(f), len(f[0])

    def convolve(layer, i):
        at = [f[c][i] for c in range(channels)]
        return [dot(w, at) + b for w, b in zip(*layer, strict=True)]

    flat = [value for channel in f for value in channel]
    m = softmax([dot(w, flat) + b for w, b in zip(*mask, strict=True)])
    out = [list(channel) for channel in f]
    for i in range(positions):
        own = convolve(theta, i)
        a = softmax([dot(own, convolve(phi, j)) for j in range(positions)])
        gathered = [0.0] * len(own)
        for j in range(positions):
            for k, value in enumerate(convolve(g, j)):
                gathered[k] += a[j] * value
        for c in range(channels):
            out[c][i] += m[i] * dot(project[c], gathered)
    return out


def centroid_loss(features, target, memory, attract, repel, margin):
    """attract * (mean |v - c_y|^2 / 2 + repel * max(0, margin - mean of other |v - c_i|^2))."""
    near, far = 0.0, 0.0
    for v, y in zip(features, target, strict=True):
        for i, c in enumerate(memory):
            if i == y:
                near += distance(v, c) ** 2 / 2 / len(target)
            else:
                far += distance(v, c) ** 2 / (len(target) * len(memory))
    return attract * (near + repel * max(0.0, margin - far))


def centroid_gradients(features, target, memory, attract, repel, margin):
    """Its gradients: of each feature, and of each centroid, which follows its images unweighted."""
    size, classes, dim = len(target), len(memory), len(memory[0])
    far = 0.0
    for v, y in zip(features, target, strict=True):
        for i, c in enumerate(memory):
            far += distance(v, c) ** 2 / (size * classes) if i != y else 0.0
    push = attract * repel * 2 / (size * classes) if far < margin else 0.0
    of_features = [[0.0] * dim for _ in features]
    of_memory = [[0.0] * dim for _ in memory]
    for b, (v, y) in enumerate(zip(features, target, strict=True)):
        count = sum(1 for other in target if other == y)
        for i, c in enumerate(memory):
            for d in range(dim):
                if i == y:
                    of_features[b][d] += attract * (v[d] - c[d]) / size
                    of_memory[i][d] += (c[d] - v[d]) / (1 + count) / size
                else:
                    of_features[b][d] -= push * (v[d] - c[d])
                    of_memory[i][d] -= push * (c[d] - v[d])
    return of_features, of_memory


# ---- the statistic of a choice on held-out data: class-balanced likelihood at its best scale


def class_losses(logits, labels, scale):
    """Cross-entropy of each image, listed by class."""
    losses = {}
    for row, label in zip(logits, labels, strict=True):
        scaled = [scale * (value - row[label]) for value in row]
        largest = max(scaled)
        total = sum(math.exp(value - largest) for value in scaled)
        losses.setdefault(label, []).append(largest + math.log(total))
    return losses


def mean_loss(logits, labels, scale):
    """Mean over the classes that have images of their mean cross-entropy."""
    losses = class_losses(logits, labels, scale)
    return statistics.fmean(statistics.fmean(values) for values in losses.values())


def best_scale(logits, labels):
    """Golden-section search on the logarithm of the scale."""
    low, high, ratio = math.log(2**-10), math.log(2**10), (math.sqrt(5) - 1) / 2
    for _ in range(100):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if mean_loss(logits, labels, math.exp(left)) < mean_loss(logits, labels, math.exp(right)):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


# ---- the contrastive loss


def balanced_contrast(views, classes, centres, temperature):
    """Mean loss of unit vectors `views` of the given classes (Zhu et al. 2022)."""
    vectors, owners = [*views, *centres], [*classes, *range(len(centres))]
    total = 0.0
    for i in range(len(views)):
        denominator = 0.0
        for c in range(len(centres)):
            members = [j for j in range(len(vectors)) if owners[j] == c and j != i]
            for j in members:
                denominator += math.exp(dot(vectors[i], vectors[j]) / temperature) / len(members)
        positives = [j for j in range(len(vectors)) if owners[j] == owners[i] and j != i]
        for j in positives:
            s = dot(vectors[i], vectors[j]) / temperature
            total -= (s - math.log(denominator)) / len(positives) / len(views)
    return total
