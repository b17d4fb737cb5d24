"""One expanded group, step by step: prompts, responses, rewards, advantages, and the ratio under each anchor.

Everything a step of TA-GRPO does, with the embedded policy and without a trainer. N = 3 rephrasings, G = 2 responses.
"""

from __future__ import annotations

import torch

from ta_grpo.group import joint_advantages, per_phrasing_advantages, phrasing_of_slot
from ta_grpo.tiny import load_policy, questions
from ta_grpo.verifier import verify_many

N, G = 3, 2


def log_probs(model, prompt: list[int], response: list[int]) -> torch.Tensor:
    """(T,) log pi(o_t | prompt, o_<t)."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


@torch.no_grad()
def main() -> None:
    torch.manual_seed(4)
    model, tokenizer = load_policy()
    question = questions("train")[2]
    texts = [question.question, *question.rephrasings[:N]]

    # 1. The sampler swaps the prompt: G slots for each phrasing.
    slots = [phrasing_of_slot(slot, (N + 1) * G, N + 1) for slot in range((N + 1) * G)]
    chats = [[{"role": "user", "content": text}] for text in texts]
    prompts = [
        tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=True)["input_ids"] for c in chats
    ]
    print(f"q_0: {texts[0]}\nanswer: {question.answer}\n")
    for n, text in enumerate(texts[1:], 1):
        print(f"q_{n}: {text}")

    # 2. Responses, and a reward for each.
    responses = [
        model.generate(torch.tensor([prompts[n]]), do_sample=True, max_new_tokens=40)[0, len(prompts[n]) :].tolist()
        for n in slots
    ]
    told = [tokenizer.decode(response, skip_special_tokens=True) for response in responses]
    rewards = [float(verdict.correct) for verdict in verify_many([(text, question.answer) for text in told])]
    for n, text, reward in zip(slots, told, rewards, strict=True):
        print(f"\n[q_{n}] reward {reward:.0f}: {text}")

    # 3. Advantages, over the whole group and, as an ablation, within each phrasing.
    rewards_QK = torch.tensor([rewards])
    joint = joint_advantages(rewards_QK)[0]
    apart = per_phrasing_advantages(rewards_QK, N + 1)[0]

    # 4. Ratios at the first update, where pi = pi_old: only a change of prompt can move them away from 1.
    print(
        "\nslot  sampled from  reward  joint A  per-phrasing A  ratio: original  importance  sampled  gap, nats a token"
    )
    for slot, (n, response) in enumerate(zip(slots, responses, strict=True)):
        under_q0, under_qn = log_probs(model, prompts[0], response), log_probs(model, prompts[n], response)
        importance = (under_q0 - under_qn).exp().mean()  # mean over tokens of pi(o|q_0) / pi_old(o|q_n)
        gap = (under_qn - under_q0).mean()
        print(
            f"{slot:>4}  q_{n:<11} {rewards[slot]:>6.0f} {joint[slot]:>8.2f} {apart[slot]:>15.2f} {1:>16.2f}"
            f" {importance:>11.2f} {1:>8.2f} {gap:>18.2f}"
        )


if __name__ == "__main__":
    main()
