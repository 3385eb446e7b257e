"""How people ask for each task in their own words, written for this project.

Public task sets are made of a few templates ("Translate German to English: ..."), and none has small talk. These
prompts teach the task model the rest. They carry no quality labels: the tiers' estimates never see them.
"""

from classifier import Task

_PROMPTS: dict[Task, str] = {
    "code": """
Write a bash script that renames all jpg files in a folder
My React component re-renders forever, what is wrong with this useEffect?
How can I read a CSV file with pandas and drop empty rows?
Convert this JavaScript callback to async/await
Give me a regex that matches an e-mail address
Why do I get a segmentation fault in this C program?
Write unit tests for the following class
Refactor this method so that it is easier to read
What is the time complexity of binary search in the code above?
How do I undo the last git commit?
Create a SQL query that returns the ten best customers per month
TypeError: 'NoneType' object is not subscriptable, what does it mean?
Explain what this function does line by line
Write a Dockerfile for a Flask app
How do I align text with CSS flexbox?
Implement a LRU cache in Go
Please review my pull request and point out bugs
Make a simple HTML page with a login form
Generate a TypeScript interface from this JSON
My docker container exits with code 137
What is the difference between a list and a tuple in Python?
Add type hints to this code
How do I parse command line arguments in Rust?
Optimize this query, it takes ten seconds on Postgres
The build fails with undefined reference to main
Schreibe eine Python-Funktion, die Primzahlen ausgibt
Escribe una función en Java que ordene una lista
Écris un script qui supprime les fichiers temporaires
""",
    "math": """
What is 348 divided by 12?
Calculate 15% of 260
Solve for y: 2y - 7 = 15
What is the area of a circle with radius 5?
If a car drives 120 km in 1.5 hours, what is its average speed?
How many ways can 6 people sit around a round table?
What is the square root of 144?
Find the roots of x^2 - 5x + 6
Integrate sin(x) cos(x) dx
A shirt costs 40 dollars and is 25% off. What do I pay?
What are the odds of drawing two aces from a deck of cards?
Prove that the sum of two even numbers is even
Convert 72 degrees Fahrenheit to Celsius
7 + 8 * 3
What is the next number in the sequence 2, 6, 12, 20?
Is 221 a prime number?
Compute the determinant of the matrix [[1, 2], [3, 4]]
How many seconds are there in a week?
If three workers need 6 days, how long do four workers need?
What is the limit of (1 + 1/n)^n as n goes to infinity?
Split a bill of 87.60 between four people
What is the greatest common divisor of 84 and 126?
Was ist 12 mal 13?
¿Cuánto es 45 por 6?
Combien font 18 plus 27 ?
""",
    "translation": """
Translate into Spanish: Where is the train station?
How do you say "I am hungry" in Italian?
What is the German word for butterfly?
Can you put this into French for me: See you next week.
Please translate the paragraph below to Portuguese.
What does "c'est la vie" mean in English?
I need this e-mail in Dutch: We will deliver on Monday.
Translate "good luck" into Korean, Japanese and Chinese
Give me the English translation of: Ich habe keine Zeit.
Say this in Russian: My name is Anna.
Turn this sentence into Polish: The shop is closed today.
Übersetze bitte auf Englisch: Das Wetter ist heute schön.
Traduce al inglés: ¿Dónde está la biblioteca?
Traduis en anglais : Je ne comprends pas.
Traduci in inglese: Vorrei un caffè.
Translate from English to Swedish: I would like a glass of water.
English to Hindi: How much does this cost?
Como se diz "obrigado" em inglês?
What would this text be in Turkish?
Translate the menu into English, keep the prices
""",
    "summarization": """
Summarize this article in three sentences.
Give me a short summary of the text below
What are the main points of this report?
TL;DR of the following e-mail thread
Shorten this paragraph to one sentence
Sum up the discussion for someone who missed the meeting
Write an abstract for this paper
Condense the following notes into five bullet points
Can you boil this down to the essentials?
Make an executive summary of the document
Summarise the chapter for a twelve-year-old
What is the gist of this?
Give a brief overview of the text above
List the key takeaways from the transcript
I have no time to read this, what does it say in short?
Write the minutes of this meeting in a few lines
Fasse den folgenden Text kurz zusammen
Resume este texto en dos frases
Résume cet article en quelques phrases
Condense this to 100 words:
""",
    "creative": """
Write a poem about the sea
Tell me a bedtime story about a brave mouse
Make up a joke about programmers
Write lyrics for a song about leaving home
Come up with a name for my bakery
Write a scene between two strangers on a train
Invent a new holiday and describe how people celebrate it
Give me ten slogans for an electric bike
Write a love letter from the moon to the earth
Pretend you are a pirate and describe your day
Write the opening line of a crime novel
Describe a city on Mars in the year 2200
Write a birthday speech for my grandmother, make it funny
Create a character for my fantasy game
Write a product description for a handmade candle
Brainstorm ideas for a short film about time
Write a rap about doing the dishes
Continue this story: The door had never been open before.
Draft a blog post about slow travel
Write a dialogue between a cat and a dog
Use these words in a sentence: river, lantern, promise
Write a cover letter with a pinch of humour
Schreibe ein Gedicht über den Herbst
Escribe un cuento corto sobre un robot
Écris une histoire drôle sur un chat
""",
    "qa": """
What is the tallest mountain in Africa?
Who painted the Mona Lisa?
Why do leaves change colour in autumn?
How does a refrigerator work?
When was the printing press invented?
Explain how vaccines work
What is the difference between a virus and a bacterium?
How long should I boil an egg?
Which countries border Switzerland?
Describe the causes of the French Revolution
What does GDP stand for?
Define entropy
Is it safe to eat raw salmon?
What are the symptoms of a cold?
How do I remove a red wine stain from a carpet?
Explain plate tectonics to a child
Where do penguins live?
Explain gravity
Explain the greenhouse effect in simple terms
What is dark matter?
List the planets of the solar system
What is the best time of year to visit Japan?
How did the Roman Empire fall?
Compare nuclear and solar energy
What is inflation and what causes it?
Is this sentence positive or negative: I loved every minute of it.
Extract all dates from the following text
Who is the president of Brazil?
How far is the moon from the earth?
Was ist die Hauptstadt von Kanada?
¿Quién escribió Don Quijote?
Pourquoi la mer est-elle salée ?
Which of these is a mammal? A) shark B) dolphin C) trout
""",
    "chat": """
Hi
Hello there!
Hey, how are you?
Good morning!
Good night, talk to you tomorrow
Hey!
Thanks a lot
Thank you, that helped me
ok
Yes please
No, that is not what I meant
Go on
Tell me more
Can you say that again in simpler words?
That is interesting, why do you think so?
Are you sure about that?
Who are you?
What can you do?
Are you a real person?
Do you like music?
What do you think about modern art?
What is your favourite film?
I am bored
I had a long day and my boss was unfair
I feel a bit down today
My best friend moved away and I miss her
I just got a new dog!
I can't decide whether to quit my job
What should I cook tonight?
Give me some advice on how to talk to my neighbour
How do I make friends in a new city?
Let's just talk for a while
Nice to meet you
How was your weekend?
I am so excited about my holiday
Do you ever get tired?
You are funny
I disagree with you
Sorry, I was away for a moment
Can we change the subject?
I don't know what to do with my life
Hallo, wie geht es dir?
Hola, ¿qué tal?
Bonjour, comment ça va ?
Ciao, come stai?
""",
}


def prompts() -> list[tuple[Task, str]]:
    """Each prompt with its task."""
    return [(task, line) for task, lines in _PROMPTS.items() for line in lines.strip().splitlines()]
