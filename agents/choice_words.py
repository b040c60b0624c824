"""Words and marks of answers to multiple-choice questions: a lexicon in ten languages, and text without layout.

In the lexicon a star means any ending, an underscore a blank. A word of several classes is read as all of these
classes, one after another; `choices` interprets sequences of classes. `to_plain_lines` gives each character one form
and drops layout marks and empty lines; ticked and crossed lines keep their signs, XML elements become lines with the
elements' names, and LaTeX becomes words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

LEXICON = {
    # Nouns for the answer; nouns next to a letter.
    "A": """answer answers guess vote conclusion solution result finalanswer correctanswer antwort antworten lösung
        lösungen réponse réponses reponse respuesta respuestas solución ответ ответы ответом решение resposta
        respostas risposta risposte soluzione solução 答案 答え 解答 回答 正解 正答 정답 정답지 답변 해답 답""",
    "AB": "答えは 解答は 正解は 正答は 正解が 정답은 정답이 답은 답이 해답은",
    "n": """option options choice choices letter one ones statement statements alternative candidate item variante
        auswahl buchstabe aussage möglichkeit lettre choix proposition opción opciones letra afirmación alternativa
        opzione opzioni lettera scelta вариант варианты варианта вариантом буква пункт opção alternativas 选项 選項
        项 項 選択肢 선택지 보기 번 番""",
    "F": "final endgültige finale définitive окончательный итоговый 最终 最終 최종",
    "FA": "boxed",
    # Forms of "to be", with infinitives in a class of their own; pronouns; verbs of choosing.
    "B": """is are was were must equals = ist sind lautet war muss es está están debe est doit sont era
        é è sono são será sarà это является says 是 为 為 称为 都是 也是 です だ である のは 것은 건 입니다
        이다 이에요 예요""",
    "b": "be being been sein être ser sea sean essere быть",
    "P": """it that this which these he she they er sie ce ça cela ceci eso esto questo quello isto isso 这 那 它
        これ それ""",
    "PB": """makes_it it's that's c'est il_s'agit_de il_s'agit_d'un es_handelt_sich_um se_trata_de si_tratta_di
        речь_идёт_о""",
    "C": """choose chose choosing pick picks select selected selecting picked picking opt lean leaning meant mean
        go_with goes_with going_with go_for going_for settle_on settle_for bet_on wähl* nehme entscheide choisis
        sélectionne elijo escojo selecciono elegiría выбираю выберу выбрал scelgo sceglierei escolho escolheria 选择
        選擇 选 選 選び 選ぶ 選択し 선택하 선택합 고르겠 고릅
        tendiere_zu tendiere penche_pour me_inclino_por inclino_por propendo_per vou_de fico_com me_quedo_con
        склоняюсь_к leans_towards incline_to
        倾向于 傾向於
        i'd_answer i'd_answer_with i_would_answer i_would_answer_with i'd_now_answer i_now_answer""",
    # Words that lead to a conclusion; words for what remains.
    "S": """so therefore thus hence consequently → daher deshalb somit folglich demnach donc ainsi luego
        por_lo_tanto por_tanto así_que quindi dunque pertanto portanto logo следовательно значит поэтому 所以 因此
        故 于是 綜上 综上 したがって 従って よって ゆえに だから 따라서 그러므로 그래서""",
    "Z": """leaves leaving leave left remain remains remaining bleibt bleiben reste restent queda quedan resta
        rimane остаётся остается остался sobra 只剩 剩下 残る 残り 残っ 남는 남습니다 남는다 남아""",
    # Words that deny. `f` and `t` are words about truth: the right answer to "which is false?" is a false one.
    "N": """not isn't aren't wasn't doesn't don't didn't cannot can't couldn't won't wouldn't shouldn't ain't no
        nope nor can_not neither never none without no_way nicht kein* nein weder noch nie non non_plus pas n'est
        n'a ne ni aucun aucune jamais ningún ninguna nunca tampoco не нет ни нельзя não nem nenhuma né nessun*
        neanche neppure 不是 不 没 沒 没有 并非 並非 也不 都不 不能 不可能 无法 ありません でもありません
        ではありません ない ません じゃない ではない いいえ いや 아닙니다 아니 아닌 않 없 못
        niet geen inte ikke değil ليس ليست नहीं bukan không""",
    "W": """wrong incorrect* mistaken invalid eliminate eliminated eliminates eliminating exclude excluded excludes
        excluding discard* reject* impossible unlikely irrelevant unrelated inaccurate distractor* trap fails
        contradict* absurd nonsense flawed misleading inappropriate unsuitable implausible red_herring
        nothing_to_do worst least_likely
        no_sense rule_out rules_out ruled_out ruling_out cross_out crossed_out scratch_that ✗ ✘ ❌ ✖ falsch*
        inkorrekt* unzutreffend* entfällt fällt_weg kommt_nicht_in_frage trifft_nicht_zu unmöglich* scheide*
        ausgeschlossen ausschließen schließe faux élimine éliminer éliminé* éliminons exclu exclut exclure exclus
        écart* erroné* mauvais* incorrecta* incorrecto* descart* imposible mal elimina eliminamos eliminad*
        equivocad* erróne* неправильн* неверн* исключ* ошибочн* отпада* errad* incorret* elimino sbagliat* scarto
        escludo escluso esclusa 错误 错 錯誤 錯 不对 不對 不正确 不正確 不符 不符合 无关 不相关 不合适 不妥 不当
        不成立 不选 不選 排除 有误 間違い 間違っ 誤り 誤っ 違います 違う 不正解 不適切 除外 틀렸 틀린 틀립 틀리 오답
        제외 부적절 배제
        doubt doubtful bad least_plausible least_probable least_convincing wrongly fout onjuist* niet_juist
        błędn* niepoprawn* nieprawidłow* yanlış خطأ خاطئ خاطئة गलत salah sai excluyo""",
    "W;": "틀렸고 틀리고 제외하면 제외하고 除いて",
    "BW": """is_out are_out is_off be_a_mistake is_a_mistake be_an_error wäre_ein_fehler ist_ein_fehler sería_un_error
        es_un_error serait_une_erreur est_une_erreur sarebbe_un_errore è_un_errore seria_um_erro é_um_erro
        было_бы_ошибкой""",
    "f": "false untrue falso falsa falsos falsas fausse fausses ложно ложн* 假",
    "hB": "wäre wären serait seraient sería serían seria seriam sarebbe sarebbero",
    "Nq": """doubt_that doubt_whether doubt_if doubtful_that false_that not_true_that
        untrue_that incorrect_that wrong_to_say wrong_that wrong_to_think""",
    # Words that affirm.
    "R": """correct right fits fit matches best_fit what_we_want what_we_need looking_for satisfies
        satisfy fulfills fulfils better_supported better_fit ✓ ✔ ✅ ☑ richtig*
        korrekt* stimmt zutreffend* passt juste bonne exacte correcte correctes corrects correct* acertada convient
        правильн* верн* верен подходит corrett* giust* corret* certa 正确 正確 更准确 更合适 更合理 对 對
        符合 成立 合适 正しい
        正しく 正しき 適切 맞습니다 맞다 맞는 맞아 맞지 옳은 옳습니다 옳지 올바른 적절
        wins makes_the_most_sense makes_more_sense makes_sense best_describes best_explains best_represents has_to_be_it
        """,
    "RA": """better_answer better_choice better_option best_answer best_choice best_option right_choice right_option
        correct_choice correct_option""",
    "t": "true wahr vrai vraie verdader* cierto cierta истинно vero vera verdadeir*",
    "Y": "yes yeah yep ja oui sí да sì sim はい 네 没错",
    "X": """except besides all_but anything_but everything_but other_than apart_from aside_from außer sauf excepto
        salvo кроме exceto tranne""",
    "D": """over beats unlike than rather_than instead_of as_opposed_to statt anstatt au_lieu_de en_vez_de en_lugar_de
        вместо а_не 而不是 而非""",
    # Words that only consider a choice; words that weaken; filler words; verbs of thinking.
    "H": """if suppose supposing assume assuming whether imagine many some someone people students popular tempting
        tempted common_mistake common_error common_misconception typical_mistake at_first_glance wenn falls ob
        viele manche beaucoup certains muchos algunos mucha многие
        некоторые частая_ошибка häufiger_fehler erreur_fréquente erreur_courante error_común erro_comum
        errore_comune 常见错误 常见的错误 よくある間違い 흔한_실수 если molti alcuni muitos alguns
        如果 假如 假设 是否 除非 以为 若 もし 만약
        consider considering let's_look_at look_at let's_start_with start_with let's_examine examine first_answer
        first_guess first_instinct first_thought initial_answer initial_guess initial_thought one_might_think
        you_might_think one_could_think man_könnte_meinen man_könnte_denken man_könnte_glauben on_pourrait_croire
        on_pourrait_penser se_podría_pensar podría_pensarse podría_parecer parecería si_potrebbe_pensare
        si_potrebbe_credere pode-se_pensar poderia_parecer можно_подумать кажется_что i_would_have i'd_have
        would_have_been was_thought_to
        与其 よく""",
    "h": """could may might perhaps maybe possibly könnte vielleicht peut pourrait podría может возможно poderia
        potrebbe
        would""",
    "i": """i i'd i'll i'm we well ok okay best elimination all_right right_next right_after right_before right_now
        sure definitely clearly obviously certainly probably likely surely simply only just really exactly
        should will also too then here indeed of_course not_only turns_out_to_be no_doubt_that no_doubt
        without_doubt nothing_but none_but after_all without_a_doubt no_question_about_it no_question not_sure
        don't_know don't_know_for_certain
        don't_know_for_sure ich wir wohl sicher eindeutig natürlich wahrscheinlich daran auch nur denn ohne_zweifel
        je nous dirais seul seule probablement certainement évidemment sans_doute sans_aucun_doute yo diría solo
        probablemente seguramente sin_duda я мы конечно наверное вероятно точно без_сомнения penso probabilmente
        provavelmente senza_dubbio sem_dúvida nicht_nur non_seulement no_solo не_только élimination eliminación
        exclusión исключения исключением esclusione eliminação 我 应该 應該 可能 大概 肯定 我想 的 的是 非常 与题意
        与题目 与事实 对于 对应 面对 相对 针对 不仅 不错 只有 只是 毫无疑问 排除法 소거법 たぶん 多分 おそらく
        と思います だと思います だと思う でしょう と考えます 私は に違いない 間違いなく 間違いない の も 저는 제
        아마 인 것 것으로 같습니다 생각합니다 확실히 가장 항
        to_the_question to_this_question""",
    "q": "dass daß что",
    "T": """think believe say agree appear seem glaube denke meine crois pense creo pienso думаю считаю credo acho
        认为 認為 觉得""",
    "L": "so_are so_is so_do so_does same_for same_goes_for likewise",
    # Words that turn away from a statement; words that join; words that begin another clause.
    "k": """wait hmm hm but however actually sorry oops correction instead mistake specifically more_specifically
        more_precisely namely to_be_precise on_second_thought on_reflection
        double-check double_check recheck or_rather aber jedoch moment halt doch sondern mais attendez pardon plutôt
        genauer_gesagt plus_précisément más_precisamente точнее а_именно pero espera perdón sino но а подождите
        постойте стоп ma però aspetta mas porém espere 但 但是 不过 可是 等等
        等一下 而是 其实 しかし でも ただし すみません 하지만 그러나 잠깐 잠깐만요 지만
        anzi invece
        ですが ますが でしたが ましたが 不如""",
    "Nk": "ではなく じゃなく でなく 아니라 아니고 않지만 아니지만 ませんが ありませんが",
    "J": """and or through thru bis & / y o e u und oder et ou и или ed od como quanto as_well_as
        together_with but_also
        als_auch sondern_auch así_como ainsi_que 和 或 或者 与 與 以及 还是 跟 と や または もしくは および 와 과 및
        또는 혹은 、""",
    "s": """because since as for although though while whereas when where weil da während obwohl car puisque parce
        comme porque pues aunque mientras потому поскольку так хотя perché poiché mentre pois 因为 因為 由于 虽然
        雖然 ので なので から ため 므로 이므로 이고 이며 때문""",
    # Articles, and particles after nouns, are skipped.
    "": """the a an der die das dem den des ein eine einen la le les el los las lo il gli un une una uno os um uma
        는 은 를 을 로 도 수 일 は が を 也""",
}

# Characters of languages written without blanks, or with particles attached to words.
EAST_ASIAN = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"

# The choice of each Cyrillic letter, as an index; -1 for an ambiguous letter.
CYRILLIC = {"А": 0, "Б": 1, "С": 2, "Г": 3, "Д": 4, "В": -1, "Е": -1}
# Nouns before a letter that names no choice ("vitamin B").
KINDS = frozenset(["vitamin", "hepatitis", "type", "group", "class", "point", "plan", "grade", "section", "figure"])
KINDS |= {"appendix", "chapter", "table", "exhibit", "influenza"}
# Choices that contain a number: if a question has such choices, a bare number is no label.
NUMBERS = re.compile(
    r"\d|[一二三四五六七八九十两하한둘두셋세넷네]|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|zero|none|eins?|zwei|drei"
    r"|vier|fünf|deux|trois|quatre|cinq|une?|un[oa]|dos|tres|cuatro|cinco|due|tre|quattro|cinque|один|два|три|пять)\b",
    re.IGNORECASE,
)
# Nouns before a number that may be the position of a choice or the text of a choice.
COUNTED = re.compile(r"(?:option|choice|answer choice|opción|opzione|opção|вариант|选项|選項|選択肢)\s$", re.IGNORECASE)
# Words for the first four positions of a list, as in "the second option".
_ORDINALS = (
    "first erste première primera prima primeira первый 第一个 第一個 첫_번째 最初の",
    "second zweite deuxième segunda seconda второй 第二个 第二個 두_번째 二番目の",
    "third dritte troisième tercera terza terceira третий 第三个 第三個 세_번째 三番目の",
    "fourth vierte quatrième cuarta quarta четвёртый 第四个 第四個 네_번째 四番目の",
)
_ORDINAL_INDEX = {word.replace("_", " "): index for index, words in enumerate(_ORDINALS) for word in words.split()}
_OPTIONS = ("option", "opción", "opzione", "opção", "вариант", "选项", "選項", "選択肢", "선택지", "보기")
_ORDINAL_CHOICE = re.compile(
    rf"(?:\b|(?<=[{EAST_ASIAN}]))({'|'.join(_ORDINAL_INDEX)}|last)\s?(?:answer )?"
    rf"(?:{'|'.join(_OPTIONS)})(?![A-Za-z])(?! [A-Z]\b)",
    re.IGNORECASE,
)


def mark_ordinals(text: str, marks: Sequence[str]) -> str:
    """Replace each choice that is named by its position ("the second option") with the choice's mark."""

    def replace(match: re.Match[str]) -> str:
        index = _ORDINAL_INDEX.get(match[1].lower(), len(marks) - 1)
        return marks[index] if index < len(marks) else match[0]

    lowered = text.lower()
    return _ORDINAL_CHOICE.sub(replace, text) if any(noun in lowered for noun in _OPTIONS) else text


def _compile_lexicon() -> tuple[
    dict[str, str], list[tuple[str, str]], re.Pattern[str], dict[str, str], re.Pattern[str]
]:
    words: dict[str, str] = {}
    stems: list[tuple[str, str]] = []
    phrases: dict[str, str] = {}
    eastern: dict[str, str] = {}
    for classes, listed in LEXICON.items():
        for word in listed.split():
            if re.search(f"[{EAST_ASIAN}、]", word):
                eastern[word] = classes
            elif word.endswith("*"):
                stems.append((word[:-1], classes))
            elif "_" in word:
                phrases[word.replace("_", " ")] = classes
            else:
                words[word] = classes
    longest = sorted(phrases, key=len, reverse=True)
    phrase = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest))})\b")
    east = re.compile("|".join(map(re.escape, sorted(eastern, key=len, reverse=True))))
    return words, stems, phrase, phrases | eastern, east


SINGLE, _STEMS, PHRASE, SEVERAL, EASTERN = _compile_lexicon()
_ELIDED = re.compile(r"(?:l|d|j|qu|s|m|t|all|dell|nell)'(.+)|(n)'(.+)")


@lru_cache(maxsize=8192)
def word_classes(word: str) -> str:
    """Return the classes of a word in lower case; `w` for one that is not listed."""
    single = SINGLE.get(word)
    if single is not None:
        return single
    for stem, classes in _STEMS:
        if word.startswith(stem):
            return classes
    match = _ELIDED.fullmatch(word)
    if match is not None:
        return f"N{word_classes(match[3])}" if match[2] else word_classes(match[1])
    return "w"


_LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Replacement for a choice's words, and the mark of the first choice; both characters are first removed from texts.
TEXT_MARK, FIRST_MARK = "\ue000", 0xE100
_TABLE: dict[int, str | None] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width forms
_TABLE.update({0x24B6 + index: letter for index, letter in enumerate(_LABELS)})  # letters and digits in circles
_TABLE.update({0x24D0 + index: letter.lower() for index, letter in enumerate(_LABELS)})
_TABLE.update({0x2460 + index: f" ({index + 1}) " for index in range(9)})
for _characters, _plain_one in (
    ("\u00a0\u1680\u2007\u202f\u205f\u3000\t\v\f\x1c\x1d\x1e\x1f\x85·", " "),
    ("\r\u2028\u2029", "\n"),
    ("‘’‚‛ʼ´′", "'"),
    ("“”„‟«»‹›「」『』《》″", '"'),
    ("‐‑‒–—―−﹣", "-"),
    ("【", "["),
    ("】", "]"),
    ("。", ". "),
    ("…", ".."),
    ("⇒➔➜➡⟶", "→"),
    ("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0e\ufe0f\u00ad\u202a\u202b\u202c\u202d\u202e", None),
    ("\u2066\u2067\u2068\u2069", None),
):
    _TABLE.update(dict.fromkeys(map(ord, _characters), _plain_one))
_TABLE.update({0x2080 + digit: str(digit) for digit in range(10)})  # CO₂
_TABLE.update(dict.fromkeys(range(0xE000, 0xE200), " "))
_MATHEMATICAL = re.compile("[\U0001d400-\U0001d7ff]+")  # 𝐁
_STRUCK = re.compile(r"~~[^~\n]{1,200}~~")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s?\{")
_FUNCTION = re.compile(r"\\(?=(?:log|ln|sin|cos|tan|exp|max|min)(?![A-Za-z]))")
_LATEX = re.compile(r"\\[()\[\]]|\\[A-Za-z]{2,20}\b|\\")
_CONTROL = re.compile(r"<\|[^<>|\n]{1,40}\|>|\[/?INST\]")  # written by chat templates: <|im_end|>
_TAG = re.compile(r"<(/?)([A-Za-z][\w:-]{0,30})(?:\s[\w-]{1,20}=[^<>\n]{0,200})?\s?/?>")
_APOSTROPHE = re.compile(r"(?<=\w)`(?=\w)")
_ARROW = re.compile("[-=]{1,3}>")
_CROSS = re.compile(r"×(?!\s?\w)")  # a cross that is no product sign
_MARKDOWN = re.compile(r"[*`#$_{}]")
_MARKED = re.compile(
    r"[^\n -~]|[*`#$_{}\\~<]"
)  # characters that `_strip_markup` may change; most short replies have none
CHECK_MARKS = frozenset("✓✔✅☑✗✘❌✖")
_MARKED_LINE = re.compile(r"^\W{0,4}?([✓✔✅☑✗✘❌✖☐]|\[[xX ]\])(.*)$")
_LINE_START = re.compile(r"^(?:[\s>|•]|-+\s)+")
_BOXES = {"[x]": "✓", "[X]": "✓", "[ ]": "✗", "☐": "✗"}
_NUMBERED = re.compile(r"^(?:step\s)?\d{1,2}[.)]\s+(?=\S)", re.IGNORECASE)


def to_plain_lines(text: str) -> str:
    """Return the text without layout marks, in one form for each character and without empty lines."""
    text = text if _MARKED.search(text) is None else _strip_markup(text)
    text = _ARROW.sub("→", text)
    lines = []
    for line in text.split("\n"):
        match = _MARKED_LINE.match(line)
        if match is not None and match[2].strip() and not CHECK_MARKS & set(match[2]):
            line = f"{match[2]} : {_BOXES.get(match[1], match[1])}"
        line = _NUMBERED.sub("", " ".join(_LINE_START.sub("", line).split()))
        if line:
            lines.append(line)
    return "\n".join(lines)


def _strip_markup(text: str) -> str:
    text = unicodedata.normalize("NFC", text).translate(_TABLE)
    text = _CONTROL.sub("\n", text)
    text = _MATHEMATICAL.sub(lambda letters: unicodedata.normalize("NFKC", letters[0]), text)
    if "<" in text:
        text = _strip_tags(text)
    text = _BOXED.sub(" boxed: ", _STRUCK.sub(" ", text)).replace("\\n", "\n")
    text = _CROSS.sub("✗", _APOSTROPHE.sub("'", _LATEX.sub(" ", _FUNCTION.sub("", text))))
    return _MARKDOWN.sub(lambda mark: " " if mark[0] in "_{}" else "", text)


def _strip_tags(text: str) -> str:
    """Return XML elements as lines with their names (`answer: B`), and a tag of one letter as that letter."""
    closed = {match[2] for match in _TAG.finditer(text) if match[1]}

    def replacement(match: re.Match[str]) -> str:
        name = match[2].lower()
        if len(name) == 1:
            return "" if match[2] in closed else f" ({match[2]}) "
        if name in ("em", "strong", "span", "code", "sub", "sup", "font"):
            return ""
        return "\n" if match[1] or not {"A", "n"} & set(word_classes(name.rpartition("_")[2])) else f"\n{name}: "

    return _TAG.sub(replacement, text)
