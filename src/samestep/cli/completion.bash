_samestep() {
    local verb=${COMP_WORDS[1]:-} recipe=${COMP_WORDS[2]:-} word=${COMP_WORDS[COMP_CWORD]}
    local before=${COMP_WORDS[COMP_CWORD - 1]:-} settings='' presets='' choices=''
    case $recipe in
        @CASES@
    esac
    local IFS=$' \n'
    if ((COMP_CWORD == 1)); then
        choices='@VERBS@'
    elif [[ $before == --resume || ($verb =~ ^(@OF_RUNS@)$ && $COMP_CWORD == 2) ]]; then
        IFS=$'\n'
        choices=$(for run in runs/*/; do run=${run%/} && printf '%s\n' "${run#runs/}"; done)
    elif [[ $verb =~ ^(@OF_RECIPES@)$ ]]; then
        if [[ $before == --preset ]]; then
            choices=$presets
        elif ((COMP_CWORD == 2)); then
            choices='@RECIPES@'
        elif [[ $verb != new ]]; then
            choices="@OPTIONS@ $settings"
        fi
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
}
complete -o default -F _samestep samestep
