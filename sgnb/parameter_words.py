"""What each parameter of ``gen`` and its kin is for, in a sentence: hover texts of the editor.

Notebook process; used by ``panel_edit``. Words only; ranges are those of ``sampling_params``.
"""

from __future__ import annotations

from sgnb.lang.arguments import GEN_PARAMS
from sgnb.sampling_params import LEGAL

PARAMETERS: dict[str, str] = {
    "name": "The variable that the text is bound to: s[name] reads it.",
    "max_tokens": "At most so many new tokens; 128 unless the run or the cell says otherwise.",
    "min_tokens": "The text does not end before so many tokens.",
    "n": "1 to 64 samples: value and meta are lists, the text goes on with the first.",
    "stop": "Texts at which it ends; they are not part of the value.",
    "stop_token_ids": "Token ids at which it ends.",
    "stop_regex": "Comes in a later version; refused until then.",
    "temperature": "0 takes the likeliest token, higher values draw more freely.",
    "top_p": "Tokens are drawn from the likeliest that together have this probability.",
    "top_k": "Tokens are drawn from so many of the likeliest.",
    "min_p": "Tokens below this share of the likeliest one's probability are not drawn.",
    "frequency_penalty": "Taken off a token's score for each time the output has it.",
    "presence_penalty": "Taken off the score of every token that the output has.",
    "repetition_penalty": "Divides the scores of tokens that the output has.",
    "logit_bias": "Token id → what is added to its score.",
    "ignore_eos": "Go on past the model's end of text.",
    "return_logprob": "Keep each token's probability: get_meta_info has output_token_logprobs.",
    "logprob_start_len": "Probabilities of the prompt too, from this token on.",
    "top_logprobs_num": "Keep so many likeliest rivals of each token.",
    "return_text_in_logprobs": "The tokens' texts beside their ids.",
    "seed": "The same seed gives the same text.",
    "dtype": "int, float, str, bool, a Literal, an enum or a class: the output is written as one.",
    "choices": "The value is the likeliest of these texts.",
    "choices_method": "How the likeliest is found: token_length_normalized, greedy_token_selection or "
    "unconditional_likelihood_normalized.",
    "regex": "The whole output matches this pattern.",
    "json_schema": "The output is JSON that this schema allows: text, dict, dataclass, TypedDict or pydantic model.",
    "ebnf": "The output is derived from rule root of this grammar.",
    "parse": "The variable is the object that the text means.",
    "priority": "Higher goes first, and may suspend lower ones.",
}
"""What each parameter of ``gen`` is for; its range is ``sampling_params``'s."""


def about_parameter(name: str) -> str:
    """The sentence of a parameter of ``gen``, with what is legal; empty for one that has none."""
    legal = LEGAL.get(GEN_PARAMS.get(name, ""), "").replace("max_new_tokens", "max_tokens")
    return PARAMETERS.get(name, "") + (f" Legal: {legal}." if legal else "")
