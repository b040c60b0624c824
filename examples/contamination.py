"""Check whether a model has seen a benchmark's test questions, by its losses on them and on fresh questions.

    python examples/contamination.py llama:model.gguf suspect.jsonl fresh.jsonl

Both files hold items (id, question, choices, answer), one per line. The model must return log-probabilities of given
texts. GGUF files and endpoints of vLLM and SGLang do.
"""

import sys

import viva


def main(model: str, suspect: str, fresh: str) -> None:
    run = viva.run_sync(
        "probe",
        models={"candidate": f"{model}{'&' if '?' in model else '?'}label=model"},
        dataset=suspect,
        against=fresh,
        method=["loss"],
        shots=0,
        out="runs/contamination",
    )
    for title, header, rows in run.tables():
        if rows and header[0] == "detector":
            # An AUC of 0.5 is chance; a whole interval above it means that the suspect items look familiar.
            print(title)
            for detector, auc in rows:
                low = float(auc.partition("(")[2].split(" ")[0])
                print(f"  {detector:<18} {auc}{'   <- familiar' if low > 0.5 else ''}")
        elif rows and header[-1].startswith("gap"):
            print(f"{title}: {header[1]} {rows[0][1]}, {header[3]} {rows[0][3]}, gap {rows[0][5]}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
