# SPDX-License-Identifier: Apache-2.0
# bash completion of dctf(1).

_dctf_mounts()
{
    findmnt -n -l -o TARGET -t fuse.dctffs 2>/dev/null
}

_dctf()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} options="--json --timeout --help"

    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "status heat peers warm evict sync doctor version --help" -- "$cur")
        return
    fi
    case $prev in
    --timeout | --jobs | --limit | --options | -n | -o) return ;;
    esac
    case ${COMP_WORDS[1]} in
    heat) options+=" --limit --cluster" ;;
    warm) options+=" --verify --share --cluster --jobs --quiet" ;;
    evict) options+=" --cluster" ;;
    sync) options+=" --force --cluster" ;;
    doctor) options+=" --options" ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        return
    fi
    case ${COMP_WORDS[1]} in
    warm | evict | sync)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(
            compgen -W "$(_dctf_mounts)" -- "$cur"
            # Names below a mount are only asked for once one was typed: a mount may hang.
            [[ $cur == */* ]] && compgen -f -- "$cur"
        )
        ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$(_dctf_mounts)" -- "$cur") ;;
    esac
}

complete -F _dctf dctf
